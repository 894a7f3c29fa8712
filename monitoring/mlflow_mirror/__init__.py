"""The mirror in MLflow: what the store holds, told to a tracking server off the request path."""
