"""What the shopping tools say in each language, in our own words; products, coupons and provinces are named as the data names them."""

from collections.abc import Mapping
from typing import NamedTuple

from opd_envs.deepplanning.shopping.tables import NAMES
from opd_envs.deepplanning.words import Description
from opd_envs.travel.entries import Language


class Labels(NamedTuple):
    """Why a call was refused."""

    no_product: str
    no_coupon: str
    no_user: str
    no_key: str
    no_order: str
    no_province: str
    no_stock: str
    not_in_cart: str
    fewer_in_cart: str
    not_owned: str
    no_vip: str
    too_cheap: str


_COUPONS = "; ".join(NAMES)
LABELS: Mapping[Language, Labels] = {
    "en": Labels(
        no_product="{0} = {1}: there is no such product; use ids exactly as a tool gave them",
        no_coupon="{0} = {1}: there is no such coupon; the coupons are " + _COUPONS,
        no_user="user_id = {0}: there is no such user; leave it out for the one who asks",
        no_key="{0} = {1}: a product has no value there",
        no_order="order = {0}: must be asc or desc",
        no_province="{0} = {1}: no province is known by this name; write it in pinyin",
        no_stock="product_id = {0}: {1} are in stock, {2} in the cart; {3} more are too many",
        not_in_cart="{0} = {1}: is not in the cart",
        fewer_in_cart="coupon_name = {0}: is {1} times in the cart, so that it cannot be taken out {2} times",
        not_owned="coupon_name = {0}: the user owns {1}, {2} are in the cart; {3} more are too many",
        no_vip="coupon_name = {0}: is for VIPs, which the user is not",
        too_cheap="the cart costs {0:g}, all coupons in it together ask for {1:g}",
    ),
    "zh": Labels(
        no_product="{0} = {1}：没有这件商品；请照抄工具给出的编号",
        no_coupon="{0} = {1}：没有这种优惠券；优惠券有：" + _COUPONS,
        no_user="user_id = {0}：没有这位用户；不填则为提问的用户",
        no_key="{0} = {1}：有商品没有这一项",
        no_order="order = {0}：只能是asc或desc",
        no_province="{0} = {1}：没有这个省份；请写拼音",
        no_stock="product_id = {0}：库存{1}件，购物车已有{2}件，不能再加{3}件",
        not_in_cart="{0} = {1}：不在购物车中",
        fewer_in_cart="coupon_name = {0}：购物车中有{1}张，不能取出{2}张",
        not_owned="coupon_name = {0}：用户有{1}张，购物车已用{2}张，不能再用{3}张",
        no_vip="coupon_name = {0}：仅限VIP，该用户不是VIP",
        too_cheap="购物车总价{0:g}，其中的优惠券共需满{1:g}",
    ),
}

_AMONG = {
    "en": "Look among these ids only; all products where left out.",
    "zh": "只在这些编号中查找；不填则为全部商品。",
}
_OWNED = {"en": f"One of: {_COUPONS}.", "zh": f"以下之一：{_COUPONS}。"}

DESCRIPTIONS: Mapping[Language, Mapping[str, Description]] = {
    "en": {
        "search_products": Description(
            "Ids of products whose brand, color, size, season, target group or name have words of the query, best first.",
            {"query": "Words to look for, in English.", "limit": "Most ids to return; 20 where left out."},
        ),
        "filter_by_brand": Description(
            "Ids of products of one of the brands; upper and lower case are the same.",
            {"product_ids": _AMONG["en"], "brand_names": "Brands, of which a product has one."},
        ),
        "filter_by_color": Description(
            "Ids of products in one of the colors; upper and lower case are the same.",
            {"product_ids": _AMONG["en"], "colors": "Colors, of which a product has one."},
        ),
        "filter_by_size": Description(
            "Ids of products in one of the sizes; upper and lower case are the same.",
            {"product_ids": _AMONG["en"], "sizes": "Sizes such as M, 42 or 140cm, of which a product has one."},
        ),
        "filter_by_applicable_coupons": Description(
            "Ids of products for which every one of the coupons may be used.",
            {"product_ids": _AMONG["en"], "coupon_names": f"Coupons, all of which must fit. {_OWNED['en']}"},
        ),
        "filter_by_range": Description(
            "Ids of products of which a number compares with a value as asked.",
            {
                "product_ids": _AMONG["en"],
                "condition_key": "Which number of a product.",
                "operator": "How the product's number, on the left, compares with the value.",
                "value": "The number on the right.",
            },
        ),
        "sort_products": Description(
            "The ids in the order of one property.",
            {
                "product_ids": _AMONG["en"],
                "sort_by": "Which property.",
                "order": "asc: smallest first; desc, where left out: largest first.",
            },
        ),
        "get_product_details": Description(
            "Everything about the products, such as price, stock, ratings by stars, sales, shipping and coupons that fit.",
            {"product_ids": "Ids that a tool gave."},
        ),
        "calculate_transport_time": Description(
            "Days that a product takes to a province, from where it is shipped and with its own carrier.",
            {
                "product_id": "Id that a tool gave.",
                "destination_address": "Province in pinyin, for example guangdong.",
                "provider": "Changes nothing: the product's own carrier counts.",
            },
        ),
        "get_user_info": Description(
            "The user's address, measurements, coupons owned by number, VIP or not.",
            {"user_id": "Left out: the user who asks."},
        ),
        "add_product_to_cart": Description(
            "Puts a product into the cart, as far as its stock goes, and returns the cart.",
            {"product_id": "Id that a tool gave.", "quantity": "How many more; 1 where left out."},
        ),
        "delete_product_from_cart": Description(
            "Takes a product out of the cart and returns the cart.",
            {
                "product_id": "Id of a product in the cart.",
                "quantity": "How many; 1 where left out; more than there are: all.",
            },
        ),
        "get_cart_info": Description(
            "The cart: products with quantity and price, coupons in use, number of products and total price.", {}
        ),
        "add_coupon_to_cart": Description(
            "Uses a coupon that the user owns, if the cart's price reaches what all coupons in it together ask for, and "
            "returns the cart with its price after discount.",
            {"coupon_name": _OWNED["en"], "quantity": "How often more; 1 where left out."},
        ),
        "delete_coupon_from_cart": Description(
            "Takes a coupon out of the cart and returns the cart with its price after discount.",
            {"coupon_name": _OWNED["en"], "quantity": "How often; 1 where left out; at most as often as it is there."},
        ),
    },
    "zh": {
        "search_products": Description(
            "品牌、颜色、尺码、季节、适用人群或名称中含有所查词语的商品编号，最相符的在前。",
            {"query": "要查的词语，用英文。", "limit": "最多返回多少个编号；不填为20。"},
        ),
        "filter_by_brand": Description(
            "属于任一所列品牌的商品编号；不分大小写。",
            {"product_ids": _AMONG["zh"], "brand_names": "品牌，符合其一即可。"},
        ),
        "filter_by_color": Description(
            "为任一所列颜色的商品编号；不分大小写。", {"product_ids": _AMONG["zh"], "colors": "颜色，符合其一即可。"}
        ),
        "filter_by_size": Description(
            "为任一所列尺码的商品编号；不分大小写。",
            {"product_ids": _AMONG["zh"], "sizes": "尺码，如M、42、140cm，符合其一即可。"},
        ),
        "filter_by_applicable_coupons": Description(
            "可以使用全部所列优惠券的商品编号。",
            {"product_ids": _AMONG["zh"], "coupon_names": f"优惠券，须全部适用。{_OWNED['zh']}"},
        ),
        "filter_by_range": Description(
            "某项数值与给定值的大小关系符合要求的商品编号。",
            {
                "product_ids": _AMONG["zh"],
                "condition_key": "商品的哪一项数值。",
                "operator": "商品的数值（左）与给定值（右）的关系。",
                "value": "给定值。",
            },
        ),
        "sort_products": Description(
            "按某一项排序后的商品编号。",
            {"product_ids": _AMONG["zh"], "sort_by": "按哪一项。", "order": "asc从小到大；desc从大到小，不填时如此。"},
        ),
        "get_product_details": Description(
            "商品的全部信息，如价格、库存、各星级评价数、销量、发货和适用优惠券。", {"product_ids": "工具给出的编号。"}
        ),
        "calculate_transport_time": Description(
            "商品从发货地由其承运商送到某省所需的天数。",
            {
                "product_id": "工具给出的编号。",
                "destination_address": "省份的拼音，如guangdong。",
                "provider": "不起作用：以商品自己的承运商为准。",
            },
        ),
        "get_user_info": Description(
            "用户的地址、身材数据、拥有的优惠券及张数、是否VIP。", {"user_id": "不填则为提问的用户。"}
        ),
        "add_product_to_cart": Description(
            "在库存之内把商品放入购物车，并返回购物车。",
            {"product_id": "工具给出的编号。", "quantity": "再加几件；不填为1。"},
        ),
        "delete_product_from_cart": Description(
            "从购物车取出商品，并返回购物车。",
            {"product_id": "购物车中商品的编号。", "quantity": "取出几件；不填为1；多于现有则全部取出。"},
        ),
        "get_cart_info": Description("购物车：商品及其数量和价格、所用优惠券、件数和总价。", {}),
        "add_coupon_to_cart": Description(
            "购物车总价达到其中全部优惠券的要求时，使用一种用户拥有的优惠券，并返回购物车及优惠后的总价。",
            {"coupon_name": _OWNED["zh"], "quantity": "再用几张；不填为1。"},
        ),
        "delete_coupon_from_cart": Description(
            "从购物车取出优惠券，并返回购物车及优惠后的总价。",
            {"coupon_name": _OWNED["zh"], "quantity": "取出几张；不填为1；不多于现有。"},
        ),
    },
}

_TASK = (
    "You shop for the user with the tools. Find products that meet every demand of the request; where it leaves something "
    "open, such as a size, look at the user. Of several products that meet a demand take the one with which the whole costs "
    "least. {level} What counts is the cart: put in exactly what was asked for and nothing else, look at it with "
    "get_cart_info before you end, then say what is in it, what it costs and why."
)
RULES: Mapping[int, str] = {
    level: _TASK.format(level=text)
    for level, text in {
        1: "Use no coupons.",
        2: "Keep within the user's budget; if that cannot be done, take what costs least and say so.",
        3: "Use those of the user's coupons that make the whole cost least, each at most as often as the user owns it; keep "
        "within the budget if there is one.",
    }.items()
}
"""What a query of each level asks for, in our own words."""
