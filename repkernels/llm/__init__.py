"""Language models: by name, served, and their answers made again."""
