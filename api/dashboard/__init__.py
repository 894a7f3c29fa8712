"""The dashboard: pages made by the server for people who look, with charts drawn in Python."""
