"""What a schedule or a compiled program costs, before anything runs: time, memory, pictures."""

from piper.simulate.costs import Costs
from piper.simulate.devices import Device, Link, device, link
from piper.simulate.engine import CycleError, Graph, Timing, Wait
from piper.simulate.exposed import Exposure
from piper.simulate.facts import ProgramFacts
from piper.simulate.measure import measure_kernels
from piper.simulate.memory import Memory
from piper.simulate.network import Network
from piper.simulate.prices import Prices, Profile, Roofline
from piper.simulate.programs import ProgramSimulation, simulate_program
from piper.simulate.stages import stage_costs
from piper.simulate.tables import Simulation, Step, simulate

__all__ = [
    "Costs",
    "CycleError",
    "Device",
    "Exposure",
    "Graph",
    "Link",
    "Memory",
    "Network",
    "Prices",
    "Profile",
    "ProgramFacts",
    "ProgramSimulation",
    "Roofline",
    "Simulation",
    "Step",
    "Timing",
    "Wait",
    "device",
    "link",
    "measure_kernels",
    "simulate",
    "simulate_program",
    "stage_costs",
]
