"""The story that ``dspark-calib serve --demo`` tells: shipped telemetry through a real service.

It runs in a process of its own and knows the service as anybody does: by its address.
"""
