#include "app/settings/front.h"

int main(int argc, char** argv) {
  return vlmtrain::app::run_front_end({argv + 1, argv + argc}, [&]() -> int { vlmtrain::app::exec_core(argv); });
}
