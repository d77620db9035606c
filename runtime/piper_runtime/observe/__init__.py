"""What a run says of itself: results of steps, metrics, spans, traces, memory."""
