#include "vlmtrain/app/run.h"

int main(int argc, char** argv) {
  return vlmtrain::app::run({argv + 1, argv + argc});
}
