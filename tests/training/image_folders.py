"""Folders of small images of two classes, as users have them."""

from __future__ import annotations

from pathlib import Path

import torch


def draw(root: Path, count: int, size: int = 16) -> Path:
    """train/CLASS and test/CLASS; bright and dark images with noise."""
    from torchvision.transforms.functional import to_pil_image

    draws = torch.Generator().manual_seed(0)
    for part, n in (("train", count), ("test", count // 3)):
        for level, name in ((70, "dark"), (150, "light")):
            (root / part / name).mkdir(parents=True)
            for i in range(n):
                image = level + torch.randint(-60, 60, (3, size, size), generator=draws)
                to_pil_image(image.to(torch.uint8)).save(root / part / name / f"{i}.png")
    return root
