from tests.simulator.campaign import main

if __name__ == "__main__":
    raise SystemExit(main())
