"""What the plugins of all engines share: settings, agreement, copies to the host, rows."""
