#include "app/validators.h"

#include <string>

namespace vlmtrain::app {

CLI::Validator not_empty() {
  return {[](const std::string& value) { return std::string(value.empty() ? "is empty; give a value" : ""); }, ""};
}

CLI::Validator non_negative() {
  return {[](const std::string& value) {
            return std::string(value.starts_with('-') ? value + ": must be a whole number of at least 0" : "");
          },
          ""};
}

}  // namespace vlmtrain::app
