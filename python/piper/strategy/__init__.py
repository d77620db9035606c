"""The strategy API: a mesh, and directives that say what runs where and when."""

from piper.strategy.annotate import Annotate, annotate
from piper.strategy.directive import Directive
from piper.strategy.location import SourceLocation
from piper.strategy.mesh import Axis, Mesh
from piper.strategy.order import Order, order
from piper.strategy.place import Place, place
from piper.strategy.remat import Remat, remat
from piper.strategy.replicate import Replicate, replicate
from piper.strategy.split import Split, split
from piper.strategy.strategy import Strategy
from piper.strategy.stream import Stream, stream
from piper.strategy.update import OptimizerFactory, Update, update

__all__ = [
    "Annotate",
    "Axis",
    "Directive",
    "Mesh",
    "OptimizerFactory",
    "Order",
    "Place",
    "Remat",
    "Replicate",
    "SourceLocation",
    "Split",
    "Strategy",
    "Stream",
    "Update",
    "annotate",
    "order",
    "place",
    "remat",
    "replicate",
    "split",
    "stream",
    "update",
]
