#pragma once

#include "vlmtrain/base/process.h"
