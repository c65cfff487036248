"""What is told of an application that can't be served."""

from scripts.serve.api import explain

TRACEBACK = """Traceback (most recent call last):
  File "replica.py", line 1, in build
ray.exceptions.RayTaskError(RuntimeError): ray::build()
RuntimeError: Traceback (most recent call last):
  File "app.py", line 2, in build
{error}

"""


def test_a_failure_is_told_without_its_traceback():
    failed = "Deploying app 'ensemble' failed with exception:\n"
    message = failed + TRACEBACK.format(error="ModuleNotFoundError: No module named 'x'")
    assert explain([message, ""]) == (
        "Deploying app 'ensemble' failed with exception: ModuleNotFoundError: No module named 'x'"
    )
    message = failed + TRACEBACK.format(error="deployments.contract.errors.ConfigurationError: members: none")
    assert explain(["", message]) == "members: none"
    assert explain(["A replica's constructor failed.", "it is unhealthy"]) == (
        "A replica's constructor failed.\nit is unhealthy"
    )
