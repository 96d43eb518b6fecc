"""What it takes to run sidetok somewhere: manifests, images and the checks on them."""
