"""The claims of the theory, each as a check with a figure and a bound; `icrl.verify` runs them all."""
