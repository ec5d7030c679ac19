"""The comparison on CPUs. work, targets and ceilings need no torch."""
