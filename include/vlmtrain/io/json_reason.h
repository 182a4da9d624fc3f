#pragma once

#include "vlmtrain/io/json.h"
