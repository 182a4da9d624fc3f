#pragma once

#include "vlmtrain/base/hash.h"
