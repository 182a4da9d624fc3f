#include "vlmtrain/io/torch_file.h"

#include <fmt/ranges.h>

#include <array>
#include <set>
#include <string>
#include <utility>

#include "io/torch_archive.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {

namespace {

using Kind = PickleValue::Kind;

constexpr std::array<std::string_view, 3> kStateKeys{"model", "state_dict", "model_state_dict"};

/// The value of `key` in a dict, the last one as in Python; null: there is none.
const PickleValue* value_of(const PickleValue& dict, std::string_view key) {
  for (size_t i = dict.items.size(); dict.kind == Kind::kDict && i > 0; i -= 2) {
    if (dict.items[i - 2]->kind == Kind::kText && dict.items[i - 2]->text == key) return dict.items[i - 1];
  }
  return nullptr;
}

bool holds_tensors(const PickleValue* value) {
  if (value == nullptr || value->kind != Kind::kDict) return false;
  for (size_t i = 0; i < value->items.size(); i += 2) {
    if (value->items[i]->kind == Kind::kText && value->items[i + 1]->kind == Kind::kTensor) return true;
  }
  return false;
}

const PickleValue& state_of(const PickleValue& content, const std::string& source) {
  for (const std::string_view key : kStateKeys) {
    const PickleValue* const state = value_of(content, key);
    if (holds_tensors(state)) return *state;
  }
  if (holds_tensors(&content)) return content;
  for (const PickleValue* const value :
       {&content, value_of(content, kStateKeys[0]), value_of(content, kStateKeys[1])}) {
    if (value == nullptr || value->kind != Kind::kObject) continue;
    throw data_error(
        "{}: holds an object of Python's {}, whose tensors only its own code knows: save its state_dict() in Python, "
        "as safetensors",
        source, excerpt(value->text));
  }
  throw data_error(
      "{}: has no dict from names to tensors, neither as a whole nor under {}: save the model's state_dict() in "
      "Python, as safetensors",
      source, fmt::join(kStateKeys, ", "));
}

NamedTensors tensors_of(const PickleValue& state, const std::string& source) {
  NamedTensors tensors;
  std::set<std::string_view> names;
  for (size_t i = 0; i < state.items.size(); i += 2) {
    const PickleValue& name = *state.items[i];
    const PickleValue& value = *state.items[i + 1];
    if (value.kind == Kind::kObject) {
      throw data_error("{}: {} needs Python's {}: convert the file to safetensors in Python, or leave the entry out",
                       source, excerpt(name.text), excerpt(value.text));
    }
    if (value.kind != Kind::kTensor) continue;
    if (name.kind != Kind::kText || !names.insert(name.text).second) {
      throw data_error("{}: a tensor's name {} stands twice or is no text; write the file again", source,
                       excerpt(name.text));
    }
    tensors.emplace_back(name.text, value.tensor);
  }
  return tensors;
}

}  // namespace

NamedTensors read_torch_file(const std::filesystem::path& path) {
  TorchArchive archive(path);
  const std::string program = archive.program();
  const Pickle pickle(program, path.string(), archive);
  return tensors_of(state_of(pickle.result(), path.string()), path.string());
}

}  // namespace vlmtrain::io
