#include "app/front.h"

int main(int argc, char** argv) {
  return vlmtrain::app::front({argv + 1, argv + argc}, argv);
}
