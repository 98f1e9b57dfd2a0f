"""`python -m opd.agent.make_database`: writes the travel database of a seed (`opd.envs.travel.make_database`)."""

from opd.envs.travel.make_database import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
