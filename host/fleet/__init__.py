"""The drives of an array as the host sees them: server, sessions, certificates, shards, life cycle."""
