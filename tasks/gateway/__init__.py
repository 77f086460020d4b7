SERVICE = "armwise-gateway"  # how /healthz tells a gateway from another server on its port
