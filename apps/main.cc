// The executable `cyfa`.
#include "apps/program.h"

int main(int argc, char** argv) { return cyfa::app::run_program(argc, argv); }
