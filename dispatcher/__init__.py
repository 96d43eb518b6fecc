"""When and where work runs: admission, deadlines, engines and the workers that call them."""
