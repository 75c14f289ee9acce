-- The registry's database, iar, is made by the image; MLflow has one of its own beside it.
CREATE DATABASE mlflow;
