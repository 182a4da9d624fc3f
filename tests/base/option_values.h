#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"

namespace vlmtrain {

/// Whether a configuration of the section that `Options` declares may have this value; `options` gets it.
template <class Options>
bool takes(Options& options, const std::string& key, const std::string& value) {
  OptionTable table;
  declare(table, options);
  try {
    table.read("", {key + "=" + value});
  } catch (const UserError&) {
    return false;
  }
  return true;
}

/// A key, the ends of what it may be, and what is just beyond them.
struct OptionValues {
  std::string key;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

template <class Options>
void expect_values(const std::vector<OptionValues>& all) {
  for (const auto& [key, good, bad] : all) {
    for (const auto& value : good) {
      Options options;
      EXPECT_TRUE(takes(options, key, value)) << key << "=" << value;
    }
    for (const auto& value : bad) {
      Options options;
      EXPECT_FALSE(takes(options, key, value)) << key << "=" << value;
    }
  }
}

}  // namespace vlmtrain
