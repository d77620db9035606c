"""Devices: streams, events, buffers and memory of a CPU and of CUDA, behind one interface."""

from __future__ import annotations

import torch

from piper_runtime.devices.base import Device, Event, MemoryFacts, Stream
from piper_runtime.devices.cpu import CpuDevice
from piper_runtime.devices.cuda import CudaDevice

__all__ = ["CpuDevice", "CudaDevice", "Device", "Event", "MemoryFacts", "Stream", "device_for"]


def device_for(device: torch.device | str) -> Device:
    """Return the interface of a device.

    Raises ValueError for a type other than cpu and cuda, for a CUDA device without a number where
    there are several, and RuntimeError for CUDA where torch finds none.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return CpuDevice()
    if device.type == "cuda":
        return CudaDevice(device)
    raise ValueError(f"device expected cpu or cuda, got {device}")
