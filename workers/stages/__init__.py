"""The three stages as work for the consumer loop of `pipeline.consumer`: the only place in `workers` that knows Redis."""
