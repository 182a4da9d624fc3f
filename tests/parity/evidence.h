#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "models/registry.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::parity {

/// The name (models::name_of) of the family of a checkpoint.
inline std::string family_of(const std::filesystem::path& checkpoint) {
  return models::name_of(models::family_of(io::read_json(checkpoint / "config.json"), checkpoint));
}

/// Says in GoogleTest's report that the running test, if it passes, shows that the family of this checkpoint can do
/// `capability`, a column of the table that scripts/families_table.py makes of the report.
inline void shows(const std::filesystem::path& checkpoint, const std::string& capability) {
  testing::Test::RecordProperty("family", family_of(checkpoint));
  testing::Test::RecordProperty("shows", capability);
}

}  // namespace vlmtrain::parity
