"""An S3 server for tests: moto, with a bucket and a user whose signatures it checks.

Prints `PORT ACCESS_KEY SECRET_KEY` once the server runs. Ends with the standard input, so also if the
test is killed.
"""

import os
import sys

# The requests before the server checks signatures: those of `main`.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"
# Not the user's own settings.
for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]

import boto3
from moto.server import ThreadedMotoServer

POLICY = """{"Version": "2012-10-17",
             "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}"""


def main():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    setup = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1",
             "aws_access_key_id": "setup", "aws_secret_access_key": "setup"}
    boto3.client("s3", **setup).create_bucket(Bucket="engram")
    iam = boto3.client("iam", **setup)
    iam.create_user(UserName="test")
    iam.put_user_policy(UserName="test", PolicyName="s3", PolicyDocument=POLICY)
    key = iam.create_access_key(UserName="test")["AccessKey"]
    print(port, key["AccessKeyId"], key["SecretAccessKey"], flush=True)
    sys.stdin.read()
    server.stop()


main()
