"""Messages between ranks: transports, the mesh, the handshake before training, replay buffers."""
