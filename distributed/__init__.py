"""Everything that runs on Ray: collection, temperature search, DDP training, transfer, and the `icrl` command."""
