#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"

namespace vlmtrain {

/// Returns true if the section that `Options` declares accepts `value` for `key`. Stores it in
/// `options`.
template <class Options>
bool accepts(Options& options, const std::string& key, const std::string& value) {
  OptionTable table;
  declare_options(table, options);
  try {
    table.read("", {key + "=" + value});
  } catch (const UserError&) {
    return false;
  }
  return true;
}

/// Key of an option with the ends of its valid range and the first values outside it.
struct OptionCase {
  std::string key;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

template <class Options>
void expect_values(const std::vector<OptionCase>& cases) {
  for (const auto& [key, valid, invalid] : cases) {
    for (const auto& value : valid) {
      Options options;
      EXPECT_TRUE(accepts(options, key, value)) << key << "=" << value;
    }
    for (const auto& value : invalid) {
      Options options;
      EXPECT_FALSE(accepts(options, key, value)) << key << "=" << value;
    }
  }
}

}  // namespace vlmtrain
