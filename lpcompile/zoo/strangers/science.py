"""Tables, graphs, operators, medical images and diffusion."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from lpcompile.zoo.entry import floats, generator
from lpcompile.zoo.strangers.table import Row, graph, table_row

_CATEGORIES = (5, 4, 3)


def _monai(name: str, inputs: Any, **options: Any) -> Row:
    return Row(name, f"monai.networks.nets:{name}", inputs, options)


_SCAN, _SLICE = floats(1, 32, 32, 32), floats(1, 64, 64)
_MONAI = [
    _monai("UNet", _SLICE, spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32, 32),
           strides=(2, 2, 2), num_res_units=2),
    _monai("SegResNet", _SLICE, spatial_dims=2, init_filters=8, in_channels=1, out_channels=2),
    _monai("DynUNet", _SLICE, spatial_dims=2, in_channels=1, out_channels=2, kernel_size=[3] * 4,
           strides=[1, 2, 2, 2], upsample_kernel_size=[2] * 3, filters=[8, 16, 32, 32]),
    _monai("AttentionUnet", _SLICE, spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32),
           strides=(2, 2)),
    _monai("UNETR", _SLICE, in_channels=1, out_channels=2, img_size=(64, 64), feature_size=8, hidden_size=48,
           mlp_dim=96, num_heads=4, spatial_dims=2),
    _monai("SwinUNETR", _SLICE, in_channels=1, out_channels=2, feature_size=12, spatial_dims=2),
    _monai("DenseNet121", _SLICE, spatial_dims=2, in_channels=1, out_channels=2),
    _monai("BasicUNet", _SCAN, spatial_dims=3, in_channels=1, out_channels=2, features=(8, 8, 16, 16, 16, 8)),
    _monai("VNet", _SCAN, spatial_dims=3, in_channels=1, out_channels=2),
    _monai("ViT", _SLICE, in_channels=1, img_size=(64, 64), patch_size=(16, 16), hidden_size=48, mlp_dim=96,
           num_layers=6, num_heads=4, classification=True, spatial_dims=2),
]  # fmt: skip

_TABLES = [
    Row("ft_transformer", "tab_transformer_pytorch:FTTransformer", table_row(_CATEGORIES, 4),
        {"categories": _CATEGORIES, "num_continuous": 4, "dim": 32, "depth": 6, "heads": 4, "dim_out": 2}),
    Row("tabnet", "pytorch_tabnet.tab_network:TabNet", floats(16), {"input_dim": 16, "output_dim": 2, "n_steps": 4,
        "group_attention_matrix": torch.eye(16)}),
    Row("mlp", "rtdl_revisiting_models:MLP", floats(16), {"d_in": 16, "d_out": 2, "n_blocks": 6, "d_block": 32,
        "dropout": 0.1}),
    Row("resnet", "rtdl_revisiting_models:ResNet", floats(16), {"d_in": 16, "d_out": 2, "n_blocks": 6, "d_block": 32,
        "d_hidden": None, "d_hidden_multiplier": 2.0, "dropout1": 0.1, "dropout2": 0.0}),
    Row("ft_transformer", "rtdl_revisiting_models:FTTransformer", table_row(_CATEGORIES, 4, False), {
        "n_cont_features": 4, "cat_cardinalities": list(_CATEGORIES), "d_out": 2, "n_blocks": 6, "d_block": 32,
        "attention_n_heads": 4, "attention_dropout": 0.1, "ffn_d_hidden": None, "ffn_d_hidden_multiplier": 2.0,
        "ffn_dropout": 0.1, "residual_dropout": 0.0}),
]  # fmt: skip

_GRAPHS = [
    Row(name, f"torch_geometric.nn.models:{name}", graph, {"in_channels": 8, "hidden_channels": 16,
        "num_layers": 6, "out_channels": 4})
    for name in ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN")
] + [
    Row("pooled", "lpcompile.zoo.strangers.science:PooledGraphs", lambda batch: (
        (*graph(batch)[0], torch.arange(9) // 3), {}), builds="torch_geometric"),
]  # fmt: skip

_OPERATORS = [
    Row("fno", "neuralop.models:FNO", floats(1, 16, 16), {"n_modes": (4, 4), "hidden_channels": 8, "in_channels": 1,
        "out_channels": 1, "n_layers": 6}),
]  # fmt: skip


class PooledGraphs(nn.Module):
    """It classifies each graph of a batch by the mean of its nodes."""

    def __init__(self) -> None:
        super().__init__()
        graphs: Any = importlib.import_module("torch_geometric.nn")
        self.lift, self.pool, self.head = nn.Linear(8, 16), graphs.MeanAggregation(), nn.Linear(16, 3)
        self.layers = nn.ModuleList(graphs.TransformerConv(16, 16) for _ in range(6))

    def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)
        for layer in self.layers:
            x = x + layer(x, edges).relu()
        found: torch.Tensor = self.head(self.pool(x, batch))
        return found


def gaussian_diffusion(size: int) -> Any:
    """A diffusion model with its loss inside: it draws time steps and noise itself."""
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    return GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2, 4), flash_attn=False), image_size=size, timesteps=20)


_DIFFUSION = [
    Row("gaussian_diffusion", "lpcompile.zoo.strangers.science:gaussian_diffusion", lambda batch: (
        (torch.rand(batch, 3, 32, 32, generator=generator()),), {}), {"size": 32},
        builds="denoising_diffusion_pytorch"),
    Row("egnn", "egnn_pytorch:EGNN_Network", lambda batch: ((torch.randint(0, 21, (batch, 12), generator=generator()),
        torch.randn(batch, 12, 3, generator=generator())), {}), {"num_tokens": 21, "num_positions": 12, "dim": 32,
        "depth": 4, "num_nearest_neighbors": 4}),
]  # fmt: skip

ROWS = [*_MONAI, *_TABLES, *_GRAPHS, *_OPERATORS, *_DIFFUSION]
