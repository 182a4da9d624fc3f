#include "vlmtrain/app/run.h"

int main(int argc, char** argv) {
  return vlmtrain::app::run_program({argv + 1, argv + argc});
}
