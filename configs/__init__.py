"""The shipped YAML files: models/ holds architectures, runs/ holds whole runs."""
