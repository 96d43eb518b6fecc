"""sidetok on a Ray cluster: an application for Ray Serve, and a job for Ray Data."""
