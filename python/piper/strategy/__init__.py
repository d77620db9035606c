"""The strategy API: a mesh, and directives that say what runs where and when."""

from piper.strategy.annotate import Annotate, annotate
from piper.strategy.directive import Directive
from piper.strategy.location import SourceLocation
from piper.strategy.mesh import Axis, Mesh
from piper.strategy.order import Order, order
from piper.strategy.overlap import Overlap, overlap
from piper.strategy.place import Place, place
from piper.strategy.remat import Remat, remat
from piper.strategy.replicate import Replicate, replicate
from piper.strategy.sequence import Sequence, sequence
from piper.strategy.shard import Shard, shard
from piper.strategy.split import Split, split
from piper.strategy.strategy import Strategy
from piper.strategy.stream import Stream, stream
from piper.strategy.update import OptimizerFactory, Update, update
from piper.strategy.user_pass import UserPass, user_pass

__all__ = [
    "Annotate",
    "Axis",
    "Directive",
    "Mesh",
    "OptimizerFactory",
    "Order",
    "Overlap",
    "Place",
    "Remat",
    "Replicate",
    "Sequence",
    "Shard",
    "SourceLocation",
    "Split",
    "Strategy",
    "Stream",
    "Update",
    "UserPass",
    "annotate",
    "order",
    "overlap",
    "place",
    "remat",
    "replicate",
    "sequence",
    "shard",
    "split",
    "stream",
    "update",
    "user_pass",
]
