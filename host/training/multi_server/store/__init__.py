"""The store by which servers find each other: server, client, key and messages."""
