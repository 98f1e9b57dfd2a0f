"""Object stores and durable files: a local folder or any fsspec URL with create-only writes, and their access settings."""
