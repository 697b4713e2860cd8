"""N maps together: links between all that overlap, loops that close, then all warps and values from all pixels."""

from mslsq.alignment.joint.links import Link, LinkStatus
from mslsq.alignment.joint.placing import place_jointly

__all__ = ["Link", "LinkStatus", "place_jointly"]
