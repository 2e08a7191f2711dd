"""Starting ranks as processes, pinning them, and telling which one failed first."""
