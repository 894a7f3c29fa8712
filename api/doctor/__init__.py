"""What ``dspark-calib doctor`` looks at: one kind of evidence a module, each a list of findings."""
