"""`armwise up`"""

import typer


def up(port: int = typer.Option(0, help="Of Airflow's UI; default: 8080, or any free one if that is taken")) -> None:
    """Start Airflow, the gateway and the database on loopback, and wait until they are healthy."""
    from tasks import database
    from tasks.stack import airflow, local

    address = local.up(port=port or None)
    print(f"Airflow   {address.airflow}   user {airflow.USER}   password {airflow.password(address.home)}")
    print(f"gateway   {address.gateway}   admin token in {address.home / 'gateway' / 'token'}")
    print(f"database  {database.url()}")
    print(f"logs      {address.home / 'logs'}")
    print("stop all of it: armwise down")
