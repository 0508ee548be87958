// The program `tutti`.
#include "tutti/base/standard_streams.h"
#include "tutti/cli/program.h"

int main(int argc, char** argv) {
  tutti::make_failed_writes_errors();
  return tutti::cli::run_program(argc, argv);
}
