"""The benchmark's delivery times: days between the regions of two provinces, changed by the carrier."""

from collections.abc import Mapping

_NAMES = """
beijing bj 北京 | shanghai sh 上海 | tianjin tj 天津 | chongqing cq 重庆 | hebei ji 河北 | shanxi jin 山西 | liaoning liao 辽宁
jilin ji_ln 吉林 | heilongjiang hei 黑龙江 | jiangsu su 江苏 | zhejiang zhe 浙江 | anhui wan 安徽 | fujian min 福建 | jiangxi gan 江西
shandong lu 山东 | henan yu 河南 | hubei e 湖北 | hunan xiang 湖南 | guangdong yue gd 广东 | hainan qiong 海南 | sichuan chuan shu 四川
guizhou qian gui_gz 贵州 | yunnan yun dian 云南 | shaanxi shan qin 陕西 | gansu gan_gs 甘肃 | qinghai qing 青海
inner-mongolia neimenggu meng 内蒙古 | guangxi gui 广西 | tibet xizang zang 西藏 | ningxia ning 宁夏 | xinjiang xin 新疆
hongkong hk xianggang 香港 | macau mo aomen 澳门 | taiwan tw 台湾
"""
"""Each province with its other names. The order counts: in a longer address the first name that is in it decides."""
_REGIONS = {
    "NC": "beijing tianjin hebei shanxi inner-mongolia",
    "NE": "liaoning jilin heilongjiang",
    "EC": "shanghai jiangsu zhejiang anhui fujian jiangxi shandong",
    "CC": "henan hubei hunan",
    "SC": "guangdong guangxi hainan hongkong macau taiwan",
    "SW": "sichuan chongqing guizhou yunnan tibet",
    "NW": "shaanxi gansu qinghai ningxia xinjiang",
}
_DAYS = {
    "NC": "1222333",
    "NE": "2133444",
    "EC": "2312234",
    "CC": "2321223",
    "SC": "3422134",
    "SW": "3432313",
    "NW": "3443431",
}
"""From a region to each, in the order of the regions."""
_REMOTE = frozenset({"tibet", "xinjiang", "qinghai", "inner-mongolia"})
_REMOTE_DAYS = 2
CARRIERS: Mapping[str, int] = {
    "sf express": -2,
    "sf": -2,
    "jd logistics": -1,
    "jd": -1,
    "yto express": 1,
    "yto": 0,
    "zto express": 1,
    "zto": 0,
    "sto express": 1,
    "sto": 0,
    "yunda express": 1,
    "yunda": 0,
    "cainiao": 1,
    "china post": 2,
    "ems": 0,
    "deppon express": 0,
    "deppon": 0,
}
"""Days more or less by a product's carrier in lower case; another carrier changes nothing."""


def _provinces() -> dict[str, str]:
    entries = [entry.split() for line in _NAMES.split("\n") for entry in line.split("|") if entry.strip()]
    return {name.replace("-", " "): names[0] for names in entries for name in names}


_PROVINCE_OF = _provinces()
_REGION_OF = {province: region for region, names in _REGIONS.items() for province in names.split()}


def province(address: str) -> str | None:
    """The province of an address, or None.

    As in the benchmark, spaces go before names are compared: `inner mongolia` is no name then, and is taken for the first
    province with a name that is in it (`e`, Hubei).
    """
    text = address.lower().replace(" ", "").replace("province", "").replace("city", "")
    if not text:
        return None
    return _PROVINCE_OF.get(text) or next((found for name, found in _PROVINCE_OF.items() if name in text), None)


def delivery_days(origin: str, destination: str, carrier: str) -> int:
    """Whole days, at least one.

    Args:
        origin: a province, as `province` gives it. destination: likewise.
        carrier: as the product's document has it.
    """
    column = list(_REGIONS).index(_REGION_OF[destination])
    days = int(_DAYS[_REGION_OF[origin]][column])
    if _REMOTE & {origin, destination}:
        days += _REMOTE_DAYS
    return max(1, days + CARRIERS.get(carrier.lower(), 0))
