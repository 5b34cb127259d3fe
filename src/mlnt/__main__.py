from mlnt.cli import main

main()
