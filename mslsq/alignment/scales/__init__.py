"""Scales of maps: of every cell alone, from ratios; and smooth fields of them, from depth seen by several views."""
