"""What a job learns, and what the model is worth."""
