#pragma once

#include "vlmtrain/base/file_names.h"
